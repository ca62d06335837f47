"""Child processes for handlers with `isolation="process"`: the pool of a worker, and the child itself.

Both runtimes use the same pool. A call blocks the thread of its slot, which waits for the child, does
what it asks of the store, and kills it when its time is over.
"""
