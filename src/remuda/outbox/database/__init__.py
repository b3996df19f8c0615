"""What the outbox does with databases: rows, statements, drivers, and who reads what when."""
