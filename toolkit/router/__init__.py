"""The KV-aware prefill/decode router: policy (pure), the map of conversations, the HTTP app.

One request: facts -> policy -> prefill leg -> decode leg -> relay to the client -> keep the new handle.
"""
