"""What runs experiments: cells, their keys, the results store, the sweep and its workers."""
