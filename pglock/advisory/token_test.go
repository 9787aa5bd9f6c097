package advisory_test

import (
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Case B6: nothing that this package hands out can be taken for a fencing token. An advisory lock has no order of grants.
func TestNothingHereTypeChecksAsAFencingToken(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it has the packages compiled, which takes minutes where nothing is cached, and is the same everywhere")
	}
	const module = "github.com/fencedlock/fencedlock/"
	packages := compiled(t, module+"pglock", module+"pglock/advisory", module+"fence")
	want := packages[module+"fence"].Scope().Lookup("Token").Type()
	if found := handedOut(packages[module+"pglock"], want); len(found) == 0 {
		t.Error("this test finds no token in package pglock, which has some: it is of no use")
	}
	if found := handedOut(packages[module+"pglock/advisory"], want); len(found) > 0 {
		t.Errorf("these type-check as a fence.Token: %s", strings.Join(found, ", "))
	}
}

// compiled are packages as the compiler sees them.
func compiled(t *testing.T, paths ...string) map[string]*types.Package {
	t.Helper()
	out, err := exec.CommandContext(long(t), "go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
	packages := map[string]*types.Package{}
	for _, path := range paths {
		if packages[path], err = imports.Import(path); err != nil {
			t.Fatal(err)
		}
	}
	return packages
}

// handedOut names what a package exports that is assignable to a type: constants, variables, fields, results and arguments of
// callbacks, to any depth within the package.
func handedOut(pkg *types.Package, want types.Type) (found []string) {
	seen := map[types.Type]bool{}
	var walk func(what string, t types.Type)
	walk = func(what string, t types.Type) {
		if types.AssignableTo(t, want) {
			found = append(found, what)
			return
		}
		if seen[t] {
			return
		}
		seen[t] = true
		switch t := t.(type) {
		case *types.Named:
			if t.Obj().Pkg() != pkg {
				return
			}
			for m := range t.Methods() {
				if m.Exported() {
					walk(what+"."+m.Name(), m.Type())
				}
			}
			walk(what, t.Underlying())
		case *types.Alias:
			walk(what, types.Unalias(t))
		case *types.Struct:
			for f := range t.Fields() {
				if f.Exported() {
					walk(what+"."+f.Name(), f.Type())
				}
			}
		case *types.Signature:
			for v := range t.Results().Variables() {
				walk(what+"()", v.Type())
			}
			for v := range t.Params().Variables() { // callbacks are handed things
				if callback, ok := v.Type().Underlying().(*types.Signature); ok {
					for a := range callback.Params().Variables() {
						walk(what+"(func)", a.Type())
					}
				}
			}
		case *types.Map:
			walk(what, t.Key())
			walk(what, t.Elem())
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			walk(what, t.Elem())
		}
	}
	for _, name := range pkg.Scope().Names() {
		if o := pkg.Scope().Lookup(name); o.Exported() {
			walk(name, o.Type())
		}
	}
	return found
}
