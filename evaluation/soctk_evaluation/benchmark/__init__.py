"""The open benchmark: versioned problems, entries by anyone, scores that are recomputed from decisions alone."""
