"""The smoothing Newton method of `soctk.decide.newton` in compiled code, for one instance or several in SIMD lanes."""
