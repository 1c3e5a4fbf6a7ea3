"""Tasks of electrical grids, whose data the extra `grid` brings."""
