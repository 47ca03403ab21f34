"""One suite for every store: a folder, memory, three S3 servers (moto, rclone, MinIO)."""
