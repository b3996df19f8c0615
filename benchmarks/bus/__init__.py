"""The bus beside its peers. Each side has a process of its own, so that one that hangs cannot hold the run."""
