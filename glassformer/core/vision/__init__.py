"""Parts for images: grids of tokens, windows, convolutions, object queries, masks and prompts."""
