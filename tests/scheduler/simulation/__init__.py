"""vLLM's real scheduler over simulated workers: no kernels, no weights, every byte checked.

The bytes of each attention page and recurrent state are a known function of the request's tokens
(`function`), written to a buffer that vLLM itself laid out (`memory`) in the order in which vLLM's
model runner works (`runner`). Whatever a step reads is compared with the function first, so a wrong
page, a stale state or a transition applied twice stops the test at the request and step at fault.
"""
