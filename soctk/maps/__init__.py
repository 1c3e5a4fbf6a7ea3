"""Linear maps: dense, sparse, and convolutions as sparse maps."""
