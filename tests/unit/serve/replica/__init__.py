"""A replica, part by part."""
