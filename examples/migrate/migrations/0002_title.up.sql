CREATE INDEX CONCURRENTLY books_title ON books (title);
