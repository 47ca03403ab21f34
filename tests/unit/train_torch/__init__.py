"""Units of the torch half of `holdfast.train`."""
