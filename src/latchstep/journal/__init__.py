"""The journal: durable, append-only, one writer. Each session is one."""
