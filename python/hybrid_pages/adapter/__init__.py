"""What the integrations of engines and frameworks share. Nothing here imports a framework.

An integration connects one engine or framework to the cache: it turns tensors into entries and
back.

- :mod:`tiers` checks the settings of all tiers; :mod:`disk` and :mod:`remote` open them;
- :mod:`identity` names everything that entries outside the process depend on, and :mod:`files`
  tells weights apart by their files;
- :mod:`pool` turns a budget in host memory into a cache and an arena; :mod:`memory` and
  :mod:`planes` say how much memory may be taken;
- :mod:`entries` reserves, copies and commits entries, and acquires them and copies them back;
- :mod:`admission` tells the policy about requests;
- :mod:`keys` names prefixes and namespaces where the engine has no hashes of its own;
- :mod:`layout`, :mod:`staging` and :mod:`store` turn a framework's arrays into a geometry, copy
  them and hold the entries of one model;
- :mod:`session` runs one request against the cache, on a :mod:`runtime` that the integration
  writes;
  :mod:`stats` has the counts;
- :mod:`arrays`, :mod:`strides` and :mod:`cuda` find the bytes of blocks in strided arrays;
- :mod:`errors` and :mod:`versions` are the errors and version ranges of all integrations.
"""
