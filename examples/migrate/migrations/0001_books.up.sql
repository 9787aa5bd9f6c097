CREATE TABLE books (id bigint PRIMARY KEY, title text NOT NULL, author text NOT NULL);

INSERT INTO books SELECT n, 'title ' || n, 'author ' || n % 100 FROM generate_series(1, 10000) n;
