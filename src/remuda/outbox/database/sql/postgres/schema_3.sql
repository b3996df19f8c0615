-- What a handler answered is answered again to whoever asks again.
ALTER TABLE {p}inbox ADD COLUMN answer bytea;
INSERT INTO {p}schema (version, lanes) VALUES (3, 8);
