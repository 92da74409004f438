package stubimages

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// constant is a string constant of one of upstream's Go files.
type constant struct{ file, name string }

// cadvisorImages are the image with which the node suite measures the kubelet. Its name is in the suite's source alone.
func cadvisorImages() []recipe {
	return []recipe{{
		name: "cadvisor", on: "base", built: map[string]string{"/usr/bin/cadvisor": "cadvisor"},
		constants: []constant{{"e2e_node/resource_collector.go", "cadvisorImageName"}},
		config:    ocispec.ImageConfig{Entrypoint: []string{"/usr/bin/cadvisor"}},
	}}
}

// stringConstant returns the value of a constant that a Go file declares.
func stringConstant(file, name string) (string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return "", fmt.Errorf("read constant %s: %w", name, err)
	}
	for _, declaration := range parsed.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			values := spec.(*ast.ValueSpec)
			for i, id := range values.Names {
				if id.Name != name || i >= len(values.Values) {
					continue
				}
				if literal, ok := values.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					return strconv.Unquote(literal.Value)
				}
			}
		}
	}
	return "", fmt.Errorf("read constant %s: file %s has no string constant of that name", name, file)
}
