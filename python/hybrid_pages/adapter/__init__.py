"""Parts that adapters to engines and frameworks share; none of them imports a framework.

An adapter turns the tensors of one framework into entries of the cache and back. Everything else
that it needs is here:

- :mod:`pool` turns a budget in host memory into a cache and an arena;
- :mod:`admission` tells the policy of requests, and says which boundaries deserve a checkpoint;
- :mod:`keys` names prefixes and namespaces where the engine has no hashes of its own;
- :mod:`entries` reserves, copies and commits entries, and acquires and copies them back;
- :mod:`session` runs one request against the cache;
- :mod:`arrays`, :mod:`strides`, :mod:`streams` and :mod:`devices` find bytes in strided arrays;
- :mod:`errors`, :mod:`versions`, :mod:`policies` and :mod:`closing` are the words of all adapters.
"""
