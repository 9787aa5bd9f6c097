package fence

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// Returning reads rows back as they came to be written, or, from a delete, as they were: defaults, what triggers have made of
// them, columns that were not written. into is a pointer to a struct, or for several rows to a slice of structs, which gets them
// in the order that they were passed in. It is for the methods of [Table].
//
// A field has the column of its tag, `db:"customer_id"`, or of its own name in small letters and with underscores: CustomerID has
// customer_id. A field tagged "-" and one that is not exported have none, and those of an embedded struct count as its own. The
// field of a column that can be NULL is a pointer, or of a type that knows NULL; others become their zero value.
//
// Where nothing is written, into is left as it was. Where a value does not fit its field, the error comes after the write, which
// may have been made: as where the connection was lost, the same write again says so.
func Returning(into any) Option {
	return Option{func(c *config) { c.returning = &returning{into} }}
}

type returning struct{ into any }

// receive checks what n rows are to be read into; of a nil one, nothing.
func (r *returning) receive(n int) (received, error) {
	if r == nil {
		return received{}, nil
	}
	into := reflect.ValueOf(r.into)
	bad := func() (received, error) {
		want := "a pointer to a struct with columns"
		if n > 1 {
			want = "a pointer to a slice of structs with columns"
		}
		return received{}, fmt.Errorf("%w: Returning(%T): want %s", ErrInvalid, r.into, want)
	}
	if into.Kind() != reflect.Pointer || into.IsNil() {
		return bad()
	}
	got := received{into: into.Elem(), one: into.Elem()}
	if got.into.Kind() == reflect.Slice {
		got.slice = reflect.MakeSlice(got.into.Type(), n, n)
		got.one = reflect.New(got.into.Type().Elem()).Elem()
	} else if n > 1 {
		return bad()
	}
	if got.one.Kind() != reflect.Struct {
		return bad()
	}
	got.add(got.one.Type(), nil)
	if len(got.columns) == 0 {
		return bad()
	}
	got.values = make([][]any, n)
	return got, nil
}

// received is where rows are read into. Nothing gets there before keep.
type received struct {
	columns []string
	fields  [][]int // of the struct, for each column
	into    reflect.Value
	one     reflect.Value // a struct, whose type counts
	slice   reflect.Value // if there may be several
	values  [][]any       // a pointer to a pointer for each column of each row: nil is NULL
}

func (r *received) add(typ reflect.Type, path []int) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		at := append(append([]int(nil), path...), i)
		tag, tagged := f.Tag.Lookup("db")
		switch {
		case tag == "-", !f.IsExported() && !f.Anonymous:
		case f.Anonymous && f.Type.Kind() == reflect.Struct && !tagged:
			r.add(f.Type, at)
		case !f.IsExported():
		case tag != "":
			r.columns, r.fields = append(r.columns, tag), append(r.fields, at)
		default:
			r.columns, r.fields = append(r.columns, snake(f.Name)), append(r.fields, at)
		}
	}
}

// row is where the values of one row are scanned into. A row that gets another key is answered twice.
func (r *received) row(i int) []any {
	if len(r.columns) == 0 {
		return nil
	}
	i = min(i, len(r.values)-1)
	r.values[i] = make([]any, len(r.columns))
	for c, path := range r.fields {
		r.values[i][c] = reflect.New(reflect.PointerTo(r.one.Type().FieldByIndex(path).Type)).Interface()
	}
	return r.values[i]
}

// keep hands over what was read.
func (r *received) keep() {
	for i, values := range r.values {
		one := r.into
		if r.slice.IsValid() {
			one = r.slice.Index(i)
		}
		for c, path := range r.fields {
			field, value := one.FieldByIndex(path), reflect.ValueOf(values[c]).Elem()
			if value.IsNil() {
				field.SetZero()
				continue
			}
			field.Set(value.Elem())
		}
	}
	if r.slice.IsValid() {
		r.into.Set(r.slice)
	}
}

// snake is CustomerID as customer_id.
func snake(name string) string {
	var b strings.Builder
	letters := []rune(name)
	for i, l := range letters {
		if unicode.IsUpper(l) && i > 0 && (!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(l))
	}
	return b.String()
}
