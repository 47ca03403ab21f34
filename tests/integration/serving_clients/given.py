"""What both clients send, and what they ask for."""

from __future__ import annotations

import numpy as np

X = np.arange(8, dtype=np.float32).reshape(2, 4)
HALVES = np.array([[0.5], [1.5]], np.float16)
WORDS = np.array([[b"hello"], ["größe".encode()]], object)
FLAGS = np.array([[True], [False]])
GIVEN = (
    ("x", "FP32", X),
    ("half", "FP16", HALVES),
    ("word", "BYTES", WORDS),
    ("flag", "BOOL", FLAGS),
)
OUTPUTS = ("y", "half_out", "word_out", "flag_out", "count")
