"""Models as ONNX graphs: writing one, and running one in place of a model."""
