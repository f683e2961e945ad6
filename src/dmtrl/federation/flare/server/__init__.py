"""At the coordinator: the server of NVIDIA FLARE, its folder, its runs."""
