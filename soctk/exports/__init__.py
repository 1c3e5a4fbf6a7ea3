"""What a learned function can be turned into: its affine pieces, an ONNX graph, a file that decides."""
