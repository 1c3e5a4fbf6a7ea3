"""What a learned function can be turned into: its affine pieces, an ONNX graph."""
