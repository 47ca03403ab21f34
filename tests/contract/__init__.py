"""One suite for the coordination plane, run unchanged over our server and a ZooKeeper ensemble."""
