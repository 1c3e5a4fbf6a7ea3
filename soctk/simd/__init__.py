"""Building blocks of compiled code: numbers with lanes, tiles, small dense algebra. Its modules load Numba."""
