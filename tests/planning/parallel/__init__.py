"""What runs beside each other: transfers, processors, threads, banks."""
