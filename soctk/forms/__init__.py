"""The convex function at a context: value, dual and bound, and what is made of it."""
