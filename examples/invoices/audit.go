//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const total = 120 // of each invoice

// A line is what somebody has paid for invoice 1, without the fence, and for invoice 2, under it.
type line struct {
	Payer    string
	One, Two int
}

// audit prints what was paid, and returns an error unless invoice 1 was paid twice and invoice 2 once.
func audit(ctx context.Context, pool *pgxpool.Pool, fenced, refused bool) error {
	rows, _ := pool.Query(ctx, `
		SELECT coalesce(payer, 'in all'),
			coalesce(sum(amount) FILTER (WHERE invoice = 1), 0), coalesce(sum(amount) FILTER (WHERE invoice = 2), 0)
		FROM payments GROUP BY ROLLUP (payer) ORDER BY payer`) // its error is CollectRows', too
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[line])
	if err != nil {
		return err
	}
	second := "invoice 2, with the fence"
	if !fenced {
		second = "invoice 2, without it, too"
	}
	fmt.Printf("\n%-10s%-28s   %s\n", "paid", "invoice 1, without the fence", second)
	for _, l := range lines {
		fmt.Printf("%-10s%-28s   %s\n", l.Payer, amount(l.One), amount(l.Two))
	}
	return verdict(lines[len(lines)-1], refused)
}

func amount(paid int) string {
	if paid > total {
		return fmt.Sprintf("%d, but %d was due: TWICE", paid, total)
	}
	return fmt.Sprint(paid)
}

// verdict believes the books first, and only then what worker A says became of its payment.
func verdict(all line, refused bool) error {
	switch {
	case all.Two > total:
		return errors.New("the fence has failed: invoice 2 was paid twice")
	case all.Two < total:
		return errors.New("invoice 2 was not paid")
	case all.One != 2*total:
		return errors.New("nothing was shown: invoice 1 was not paid twice, though no fence protects it")
	case !refused:
		return errors.New("invoice 2 was paid once, but not because the fence has refused worker A")
	}
	return nil
}
