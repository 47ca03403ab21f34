"""The parts of the proofs that decide: they must see what they are for."""
