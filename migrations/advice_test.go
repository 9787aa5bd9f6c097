package migrations

import "testing"

func TestARoleIsQuotedWhereItMustBe(t *testing.T) {
	for role, want := range map[string]string{
		"svc": `SELECT "x".grant_locker('svc')`, "Svc": `SELECT "x".grant_locker('"Svc"')`, "o'b": `SELECT "x".grant_locker('"o''b"')`, "1": `SELECT "x".grant_locker('"1"')`,
	} {
		if got := (state{schema: "x", role: role}).grantLocker(); got != want {
			t.Errorf("%s: %s, want %s", role, got, want)
		}
	}
}
