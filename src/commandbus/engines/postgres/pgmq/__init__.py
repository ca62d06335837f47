"""Real PGMQ queues as the transport of the PostgreSQL engine, and clients for them."""
