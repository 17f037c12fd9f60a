"""Parts that adapters to engines and frameworks share; none of them imports a framework.

An adapter turns the tensors of one framework into entries of the cache and back. Everything else
that it needs is here:

- :mod:`tiers` checks the settings of all tiers;
- :mod:`pool` turns a budget in host memory into a cache and an arena;
- :mod:`disk` opens a cache's share of a disk, :mod:`remote` its use of a store that machines
  share, :mod:`identity` names what is on them, and :mod:`files` tells weights apart by their files;
- :mod:`admission` tells the policy of requests, and says which boundaries deserve a checkpoint;
- :mod:`keys` names prefixes and namespaces where the engine has no hashes of its own;
- :mod:`entries` reserves, copies and commits entries, and acquires and copies them back;
  :mod:`copies` waits for the transfers of a copy engine;
- :mod:`session` runs one request against the cache, on a :mod:`runtime` that the adapter writes;
- :mod:`empty` tells places in a framework's cache that keep nothing;
- :mod:`arrays` and :mod:`strides` find the bytes of blocks in strided arrays; :mod:`devices` and
  :mod:`streams` are those of CUDA;
- :mod:`errors`, :mod:`versions`, :mod:`policies` and :mod:`closing` are what all adapters check,
  raise and close in the same way.
"""
