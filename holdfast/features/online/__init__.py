"""Online stores: the newest row of each key, on engines that people trust."""
