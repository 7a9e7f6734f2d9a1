"""HTTP server: OpenAI routes, task routes, and the explorer. Needs the extra `glassformer[serve]`.

A request passes `security` (token, host, origin), `limits` (queue, time, size) and then a route.
"""
