-- A message that came by a foreign protocol keeps its properties and headers exactly as they came.
ALTER TABLE {p}messages ADD COLUMN wire BLOB;
ALTER TABLE {p}held ADD COLUMN wire BLOB;
INSERT INTO {p}schema (version, lanes) VALUES (2, 8);
