package page

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page/linechart"
	"github.com/berth-dev/berth/page/waterfall"
)

//go:embed templates
var templateFiles embed.FS

//go:embed static/style.css
var pageStyle string

// templates are those of all pages.
var templates = template.Must(template.ParseFS(templateFiles, "templates/*.html"))

// style returns the style sheet of all pages.
func style() string { return pageStyle + waterfall.Style + linechart.Style }

// File is one HTML document that stands alone: it needs no network, no script and no other file, and its policy forbids the
// browser to load any.
type File struct {
	// Explanations are what it shows. List is set if they are all that is stuck, and not one object.
	Explanations []*explain.Explanation
	List         bool
	// Unseen names what could not be listed.
	Unseen []string
	// Made says in one line what made the file.
	Made string
	Now  time.Time
}

// Write writes the document.
func (f File) Write(w io.Writer) error {
	sheet := style()
	hash := sha256.Sum256([]byte(sheet))
	data := struct {
		Title, Summary, Made, StyleHash string
		Style                           template.CSS
		List                            bool
		Objects                         []objectView
		Unseen                          []string
	}{
		Title: "Why is this not running?", Made: f.Made, StyleHash: "sha256-" + base64.StdEncoding.EncodeToString(hash[:]),
		Style: template.CSS(sheet), List: f.List, Unseen: f.Unseen, //nolint:gosec // a constant
	}
	data.Summary = fmt.Sprintf("%d objects are not ready, the worst first.", len(f.Explanations))
	if len(f.Explanations) == 1 {
		data.Summary = "1 object is not ready."
	}
	if !f.List && len(f.Explanations) == 1 {
		data.Title = explain.Title(f.Explanations[0])
	}
	for i, e := range f.Explanations {
		view, err := newObjectView(e, fmt.Sprintf("o%d", i), f.Now)
		if err != nil {
			return err
		}
		data.Objects = append(data.Objects, view)
	}
	if err := templates.ExecuteTemplate(w, "file", data); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
