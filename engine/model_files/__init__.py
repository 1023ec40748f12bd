"""What a model's files say: configuration, tensors, quantisation, and a rank's part of them."""
