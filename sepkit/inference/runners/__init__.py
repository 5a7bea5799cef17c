"""What runs a model: graphs by ONNX Runtime, or torch. Waveforms and features are arrays on both sides."""
