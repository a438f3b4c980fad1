"""Work in parallel: transfers, processors, threads, banks."""
