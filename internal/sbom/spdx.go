package sbom

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// noAssertion is SPDX's value for what the document does not say.
const noAssertion = "NOASSERTION"

// Document is an SPDX document. Fields have the names of the specification.
type Document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      CreationInfo   `json:"creationInfo"`
	Packages          []Package      `json:"packages"`
	Relationships     []Relationship `json:"relationships"`
}

// CreationInfo says when and by what a document was made.
type CreationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// Package is the product, a program, a module or the Go toolchain.
type Package struct {
	Name             string        `json:"name"`
	SPDXID           string        `json:"SPDXID"`
	VersionInfo      string        `json:"versionInfo,omitempty"`
	PackageFileName  string        `json:"packageFileName,omitempty"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	Checksums        []Checksum    `json:"checksums,omitempty"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	ExternalRefs     []ExternalRef `json:"externalRefs,omitempty"`
	Purpose          string        `json:"primaryPackagePurpose,omitempty"`
}

// Checksum is the hash of a package's file.
type Checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

// ExternalRef names a package elsewhere, for scanners by its package URL.
type ExternalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

// Relationship relates two elements.
type Relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const documentID = "SPDXRef-DOCUMENT"

// New returns the document of programs. The same programs and options have the same document.
func New(programs []Program, options Options) Document {
	product := Package{
		Name: options.Name, SPDXID: "SPDXRef-Product", VersionInfo: options.Version, DownloadLocation: noAssertion, LicenseConcluded: "Apache-2.0",
		LicenseDeclared: "Apache-2.0", CopyrightText: noAssertion, Purpose: "APPLICATION",
	}
	document := Document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: documentID, Name: options.Name + "-" + options.Version,
		CreationInfo:  CreationInfo{Created: options.Created.UTC().Format(time.RFC3339), Creators: []string{"Tool: " + options.Name + "-" + options.Version}},
		Packages:      []Package{product},
		Relationships: []Relationship{{documentID, "DESCRIBES", product.SPDXID}},
	}
	known := map[Module]string{}
	modules := Modules(programs)
	for _, program := range programs {
		modules = append(modules, toolchain(program))
	}
	hash := sha256.New()
	for _, module := range modules {
		if known[module] != "" {
			continue
		}
		item := packageOf(module, options.Licenses[module])
		known[module] = item.SPDXID
		document.Packages = append(document.Packages, item)
	}
	for _, program := range programs {
		fmt.Fprintln(hash, program.Name, program.SHA256)
		item := Package{
			Name: program.Name, SPDXID: elementID("Program", program.Name), VersionInfo: options.Version, PackageFileName: program.Name,
			DownloadLocation: noAssertion, Checksums: []Checksum{{"SHA256", program.SHA256}}, LicenseConcluded: noAssertion,
			LicenseDeclared: noAssertion, CopyrightText: noAssertion, Purpose: "APPLICATION",
		}
		document.Packages = append(document.Packages, item)
		document.Relationships = append(document.Relationships, Relationship{product.SPDXID, "CONTAINS", item.SPDXID})
		for _, module := range program.Modules {
			document.Relationships = append(document.Relationships, Relationship{item.SPDXID, "STATIC_LINK", known[module]})
		}
		document.Relationships = append(document.Relationships, Relationship{item.SPDXID, "STATIC_LINK", known[toolchain(program)]})
	}
	document.DocumentNamespace = "https://spdx.org/spdxdocs/" + url.PathEscape(document.Name) + "-" + hex.EncodeToString(hash.Sum(nil)[:16])
	return document
}

// toolchain is the standard library that the program was built with, as a module of Go's vulnerability database.
func toolchain(program Program) Module {
	version, _, _ := strings.Cut(strings.TrimPrefix(program.GoVersion, "go"), " ")
	return Module{Path: "stdlib", Version: version}
}

func packageOf(module Module, license string) Package {
	if license == "" {
		license = noAssertion
	}
	if module.Path == "stdlib" {
		license = "BSD-3-Clause"
	}
	return Package{
		Name: module.Path, SPDXID: elementID("Module", module.Path+"-"+module.Version), VersionInfo: module.Version, DownloadLocation: noAssertion,
		LicenseConcluded: license, LicenseDeclared: license, CopyrightText: noAssertion, Purpose: "LIBRARY",
		ExternalRefs: []ExternalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + escapePath(module.Path) + "@" + url.PathEscape(module.Version)}},
	}
}

func escapePath(path string) string {
	elements := strings.Split(path, "/")
	for i, element := range elements {
		elements[i] = url.PathEscape(element)
	}
	return strings.Join(elements, "/")
}

// notInID are the characters that an SPDX identifier cannot have.
var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// elementID returns an identifier that no other element has.
func elementID(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return "SPDXRef-" + kind + "-" + notInID.ReplaceAllString(name, "-") + "-" + hex.EncodeToString(sum[:4])
}
