"""One suite for every store: a folder, memory, moto's S3 server, rclone's S3 server."""
