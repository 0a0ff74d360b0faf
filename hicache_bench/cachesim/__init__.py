"""A page-accurate model of SGLang's three-tier prefix cache (device, host, storage), without sockets or clocks.

`cache.HiCache` is the whole cache in split-phase calls: what takes time in a server is a `Transfer` that the
caller completes when it likes. `pages` owns page numbers, `tree` the radix tree, `windows` and `states` the
components next to full attention, `chain` turns token ids into page keys, `lru` is the exact reference model.
"""
