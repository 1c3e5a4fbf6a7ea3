"""The smoothing Newton method of `soctk.decide.newton` in compiled code, one instance after another."""
