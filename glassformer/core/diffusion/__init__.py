"""Parts of diffusion models: embeddings of time, class and text, adaptive norms, patches back to latents."""
