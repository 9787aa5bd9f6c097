package fence_test

import (
	"context"
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Views whose updates a trigger or a rule makes ones of their table: PostgreSQL does not look at the view's row again after it has
// waited, as it does for a table.
var views = map[string]string{
	"trigger": `CREATE FUNCTION write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			UPDATE kept SET status = NEW.status, fencing_token = NEW.fencing_token WHERE id = OLD.id; RETURN NEW; END $$;
		CREATE TRIGGER write INSTEAD OF UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION write()`,
	"rule": `CREATE RULE write AS ON UPDATE TO invoices DO INSTEAD
		UPDATE kept SET status = NEW.status, fencing_token = NEW.fencing_token WHERE id = OLD.id RETURNING kept.*`,
	"trigger of a view beneath": `ALTER VIEW invoices RENAME TO beneath; CREATE VIEW invoices AS SELECT * FROM beneath;
		CREATE FUNCTION write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			UPDATE kept SET status = NEW.status, fencing_token = NEW.fencing_token WHERE id = OLD.id; RETURN NEW; END $$;
		CREATE TRIGGER write INSTEAD OF UPDATE ON beneath FOR EACH ROW EXECUTE FUNCTION write()`,
	"none": ``,
}

func TestUpdateOfAViewComparesWithWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	updates := map[string]func(context.Context, fence.DB, fence.Grant, ...fence.Option) error{
		"Update": verbs["Update"],
		"UpdateRows": func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
			return invoices.UpdateRows(ctx, db, g, []fence.Row{invoice(2, "x"), invoice(1, "x")}, opts...)
		},
	}
	for what, setup := range views {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, `CREATE TABLE kept (id int PRIMARY KEY, status text, fencing_token bigint); CREATE VIEW invoices AS SELECT * FROM kept; `+setup)
			a, b := d.Conn(t), d.Conn(t)
			for name, update := range updates {
				d.Exec(t, `TRUNCATE kept; INSERT INTO kept VALUES (1, 'old', 6), (2, 'old', 6)`)
				ctx := bounded(t)
				tx := begin(t, a, "")
				wantErr(t, "update ahead", invoices.Update(ctx, tx, grant(9), invoice(1, "nine")), nil)
				late := waiting(t, d, func() error { return update(ctx, b, grant(7)) })
				commit(t, tx)
				wantStale(t, name+" of a view", <-late, 9)
				if got := state(t, d); got != "nine 9" {
					t.Errorf("%s left %q", name, got)
				}
				wantStale(t, name+" of a view", update(ctx, b, grant(8)), 9)
				wantErr(t, name+" again", update(ctx, b, grant(9), fence.Again()), nil)
				wantErr(t, name+" later", update(ctx, b, grant(10)), nil)
			}
		})
	}
}
