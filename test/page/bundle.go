package page

import (
	"errors"
	"fmt"

	"github.com/evanw/esbuild/pkg/api"
)

// Bundle returns the page's script as one file, made of the sources in the directory.
func Bundle(dir string) ([]byte, error) {
	result := api.Build(api.BuildOptions{
		AbsWorkingDir: dir, EntryPoints: []string{"app.js"}, Bundle: true, Format: api.FormatIIFE, Target: api.ES2021,
		MinifyWhitespace: true, MinifySyntax: true, MinifyIdentifiers: true, Charset: api.CharsetUTF8, LegalComments: api.LegalCommentsNone,
		Banner: map[string]string{"js": "// Made of page/script by `make page-script`."},
	})
	var errs []error
	for _, message := range result.Errors {
		errs = append(errs, fmt.Errorf("bundle the script: %s", message.Text))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return result.OutputFiles[0].Contents, nil
}
