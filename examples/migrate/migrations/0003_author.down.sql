DROP INDEX books_author;
