CREATE INDEX CONCURRENTLY books_author ON books (author);
