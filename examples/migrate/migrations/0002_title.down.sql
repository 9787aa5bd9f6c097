DROP INDEX books_title;
