package fence_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// BenchmarkTriggers measures what a protection costs a row of one INSERT of 20,000, and a statement of one row: the median
// of some interleaved repeats, in transactions that are rolled back.
//
//	go test -run '^$' -bench Triggers -benchtime 1x ./fence
func BenchmarkTriggers(b *testing.B) {
	const rows, repeats, statements = 20_000, 9, 200
	d := pgtest.DB(b)
	ctx := b.Context()
	conn := d.Conn(b)
	ways := []string{"unprotected", "plain", "partitioned", "keyed"}
	for _, way := range ways {
		sql := fmt.Sprintf(`CREATE TABLE %s (id int, customer int)`, way)
		if way == "partitioned" {
			sql += ` PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF partitioned DEFAULT`
		}
		d.Exec(b, sql)
		var err error
		switch way {
		case "plain", "partitioned":
			err = fence.Protect(ctx, conn, way)
		case "keyed":
			err = fence.ProtectRows(ctx, conn, way, "customer")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		perRow, perStatement := map[string][]float64{}, map[string][]float64{}
		for range repeats {
			for _, way := range ways {
				tx, err := conn.Begin(ctx)
				if err != nil {
					b.Fatal(err)
				}
				if err := fence.State(ctx, tx, grant(7)); err != nil {
					b.Fatal(err)
				}
				run := func(sql string, times int) float64 {
					start := time.Now()
					for range times {
						if _, err := tx.Exec(ctx, sql); err != nil {
							b.Fatal(err)
						}
					}
					return float64(time.Since(start).Nanoseconds()) / 1000
				}
				one := fmt.Sprintf(`INSERT INTO %s VALUES (1, 1)`, way)
				run(one, 1) // which raises the fence
				perRow[way] = append(perRow[way], run(fmt.Sprintf(`INSERT INTO %s SELECT g, 1 FROM generate_series(1, %d) g`, way, rows), 1)/rows)
				perStatement[way] = append(perStatement[way], run(one, statements)/statements)
				if err := tx.Rollback(ctx); err != nil {
					b.Fatal(err)
				}
			}
		}
		median := func(x []float64) float64 { return slices.Sorted(slices.Values(x))[len(x)/2] }
		for _, way := range ways {
			b.ReportMetric(median(perRow[way]), way+"-us/row")
			b.ReportMetric(median(perStatement[way]), way+"-us/statement")
		}
	}
}
